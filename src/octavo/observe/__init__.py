"""What operators see: metrics, logs and traces. Nothing here knows torch, and nothing slows a token down."""
