import { useState } from "preact/hooks";

const COPIED_SECONDS = 2;

/** Copies a text to the clipboard, or shows it for manual copying where the browser forbids that (remote plain HTTP). */
export function CopyButton({ label, text }: { label: string; text: () => string }) {
  const [isCopied, setCopied] = useState(false);
  const [shown, setShown] = useState<string | null>(null);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text());
      setCopied(true);
      setTimeout(() => setCopied(false), COPIED_SECONDS * 1000);
    } catch {
      setShown(shown === null ? text() : null);
    }
  };
  return (
    <>
      <button type="button" class="quiet" onClick={() => void copy()}>
        <span aria-live="polite">{isCopied ? "Copied" : label}</span>
      </button>
      {shown !== null && (
        <textarea class="code to-copy" readOnly rows={8} aria-label={label} value={shown}
          onFocus={(event) => event.currentTarget.select()} />
      )}
    </>
  );
}
