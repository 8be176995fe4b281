import { useState } from "preact/hooks";

const SAID_SECONDS = 2;

/** Copies a text; where the browser does not allow that (plain HTTP from afar), shows it to be copied by hand. */
export function CopyButton({ label, text }: { label: string; text: () => string }) {
  const [said, setSaid] = useState(false);
  const [shown, setShown] = useState<string | null>(null);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text());
      setSaid(true);
      setTimeout(() => setSaid(false), SAID_SECONDS * 1000);
    } catch {
      setShown(shown === null ? text() : null);
    }
  };
  return (
    <>
      <button type="button" class="quiet" onClick={() => void copy()}>
        <span aria-live="polite">{said ? "Copied" : label}</span>
      </button>
      {shown !== null && (
        <textarea class="code to-copy" readOnly rows={8} aria-label={label} value={shown}
          onFocus={(event) => event.currentTarget.select()} />
      )}
    </>
  );
}
