"""For the people and machines that run the server: probes, metrics, logs, the view and the page."""
