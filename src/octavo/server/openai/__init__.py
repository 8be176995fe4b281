"""The OpenAI API: each endpoint converts its body into tasks, and their output into its wire format."""
