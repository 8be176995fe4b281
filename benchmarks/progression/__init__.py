"""What each optimisation is worth: one after the other is turned on, on the workload that shows it."""
