"""The limits of an API, kept by all tasks of a job together: tokens, one per call, leased by the driver.

Driver: lease_server.py admits sinks and brings tasks together with coordinator.py, which decides who gets how many
tokens, by the sliding windows of the stated limits (sliding_window.py), and by backpressure.py: the adaptive rate that
follows refusals, the concurrency limit, the circuit breaker and the retry budget.
Tasks: lease_client.py holds the tokens of a task, waits for one before each attempt, and reports how the attempt ended.
messages.py is what they exchange, by the channel between them.
"""
