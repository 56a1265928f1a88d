"""Show the router at work: a real Kafka without an installer, and a simulator of game events."""
