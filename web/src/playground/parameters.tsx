// The request parameters. For an empty field, the defaults of the server and the checkpoint apply.

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
  { name: "temperature", label: "Temperature", title: "Sampling temperature; 0 always selects the most probable token", step: "0.1", min: "0" },
  { name: "max_tokens", label: "Max tokens", title: "Maximum number of tokens in the answer", step: "1", min: "1" },
  { name: "top_p", label: "Top p", title: "Sample from the most probable tokens whose probabilities add up to this value", step: "0.05", min: "0", max: "1" },
  { name: "top_k", label: "Top k", title: "Sample from this many of the most probable tokens; 0 means all", step: "1", min: "0" },
  { name: "min_p", label: "Min p", title: "Minimum probability of a token, relative to the most probable one", step: "0.05", min: "0", max: "1" },
  { name: "seed", label: "Seed", title: "The same seed gives the same answer; if empty, the server chooses one", step: "1" },
];
const MORE_FIELDS: readonly NumberField[] = [
  { name: "presence_penalty", label: "Presence penalty", title: "Penalty for tokens that have already occurred", step: "0.1", min: "-2", max: "2" },
  { name: "frequency_penalty", label: "Frequency penalty", title: "Penalty for each previous occurrence of a token", step: "0.1", min: "-2", max: "2" },
  { name: "repetition_penalty", label: "Repetition penalty", title: "Values above 1 penalise tokens of the prompt and the answer", step: "0.05", min: "0.01" },
  { name: "n", label: "Answers", title: "Number of answers to generate for the prompt", step: "1", min: "1" },
  { name: "alternatives", label: "Alternatives", title: "Number of alternatives shown for each token; if empty, no probabilities", step: "1", min: "0", max: "20" },
];
const FORMATS: readonly { kind: FormatKind; label: string }[] = [
  { kind: "text", label: "Any text" },
  { kind: "json_object", label: "Any JSON object" },
  { kind: "json_schema", label: "JSON with a schema" },
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
        <span>Answer format</span>
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
        <TextField session={session} name="stop" label="Stop strings, one per line" rows={2} isCode />
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
        // A number input would round 64-bit values.
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
