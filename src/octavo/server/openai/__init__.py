"""OpenAI's API: each endpoint turns a body into a task, and pieces of the answer into its wire format."""
