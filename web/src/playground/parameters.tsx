// The fields beside the conversation. Empty ones are left to the server and its checkpoint.

import type { Session } from "./session";
import type { FormatKind, NumberSetting, Settings } from "./settings";

interface NumberField {
  name: NumberSetting | "seed";
  label: string;
  title: string;
  step: string;
  min?: string;
  max?: string;
}

const MAIN_FIELDS: readonly NumberField[] = [
  { name: "temperature", label: "Temperature", title: "0: always the most probable token", step: "0.1", min: "0" },
  { name: "max_tokens", label: "Max tokens", title: "Length at which the answer is cut", step: "1", min: "1" },
  { name: "top_p", label: "Top p", title: "Only the most probable tokens that make up this share", step: "0.05", min: "0", max: "1" },
  { name: "top_k", label: "Top k", title: "Only so many tokens; 0: all", step: "1", min: "0" },
  { name: "min_p", label: "Min p", title: "Only tokens at least this probable, beside the best one", step: "0.05", min: "0", max: "1" },
  { name: "seed", label: "Seed", title: "The same seed gives the same answer; empty: drawn by the server", step: "1" },
];
const MORE_FIELDS: readonly NumberField[] = [
  { name: "presence_penalty", label: "Presence penalty", title: "Against tokens that have come", step: "0.1", min: "-2", max: "2" },
  { name: "frequency_penalty", label: "Frequency penalty", title: "Against tokens, each time they have come", step: "0.1", min: "-2", max: "2" },
  { name: "repetition_penalty", label: "Repetition penalty", title: "Above 1: against tokens of prompt and answer", step: "0.05", min: "0.01" },
  { name: "n", label: "Answers", title: "To one prompt, side by side", step: "1", min: "1" },
  { name: "alternatives", label: "Alternatives", title: "Tokens shown beside each that was drawn; empty: no probabilities", step: "1", min: "0", max: "20" },
];
const FORMATS: readonly { kind: FormatKind; label: string }[] = [
  { kind: "text", label: "Any text" },
  { kind: "json_object", label: "Any JSON object" },
  { kind: "json_schema", label: "JSON by a schema" },
];

export function Parameters({ session }: { session: Session }) {
  const settings = session.settings.value;
  return (
    <form class="parameters" aria-label="Parameters" onSubmit={(event) => event.preventDefault()}>
      {session.mode.value === "chat" && (
        <TextField session={session} name="system" label="System prompt" rows={3} placeholder="None" />
      )}
      <div class="fields">
        {MAIN_FIELDS.map((field) => (
          <NumberInput key={field.name} field={field} session={session} />
        ))}
      </div>
      <label class="field">
        <span>Format of the answer</span>
        <select
          value={settings.format}
          onChange={(event) => session.change({ format: event.currentTarget.value as FormatKind })}
        >
          {FORMATS.map(({ kind, label }) => (
            <option key={kind} value={kind}>{label}</option>
          ))}
        </select>
      </label>
      {settings.format === "json_schema" && (
        <TextField session={session} name="schema" label="JSON schema" rows={9} isCode />
      )}
      <details>
        <summary>More</summary>
        <div class="fields">
          {MORE_FIELDS.map((field) => (
            <NumberInput key={field.name} field={field} session={session} />
          ))}
        </div>
        <TextField session={session} name="stop" label="Stop at, one string a line" rows={2} isCode />
      </details>
    </form>
  );
}

function NumberInput({ field, session }: { field: NumberField; session: Session }) {
  const { name, label, title, ...bounds } = field;
  const shared = {
    name,
    autocomplete: "off" as const,
    value: session.settings.value[name],
    onInput: (event: { currentTarget: HTMLInputElement }) =>
      session.change({ [name]: event.currentTarget.value } as Partial<Settings>),
  };
  return (
    <label class="field" title={title}>
      <span>{label}</span>
      {name === "seed" ? (
        // A number input would round what has 64 bits.
        <input {...shared} type="text" inputMode="numeric" placeholder="any" />
      ) : (
        <input {...shared} {...bounds} type="number" placeholder="default" />
      )}
    </label>
  );
}

interface TextFieldProps {
  session: Session;
  name: "system" | "schema" | "stop";
  label: string;
  rows: number;
  placeholder?: string;
  isCode?: boolean;
}

function TextField({ session, name, label, rows, placeholder = "", isCode = false }: TextFieldProps) {
  return (
    <label class="field">
      <span>{label}</span>
      <textarea
        class={isCode ? "code" : ""}
        name={name}
        rows={rows}
        placeholder={placeholder}
        spellcheck={!isCode}
        value={session.settings.value[name]}
        onInput={(event) => session.change({ [name]: event.currentTarget.value } as Partial<Settings>)}
      />
    </label>
  );
}
