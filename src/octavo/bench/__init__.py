"""What the engine reaches of what the machine can do: kernels, whole steps, and the roofline they stand under."""
