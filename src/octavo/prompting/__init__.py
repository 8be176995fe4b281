"""Build prompts in killable processes: chat templates and tokenizers come from untrusted checkpoints."""
