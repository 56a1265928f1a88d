"""The limits of an API, kept by all tasks of a job together: tokens, one per call, leased by the driver.

Driver: server.py talks to tasks, coordinator.py decides who gets how many tokens, by the sliding windows of the stated
limits, the adaptive rate that follows refusals, the concurrency limit, the circuit breaker and the retry budget.
Tasks: client.py waits for a token before each attempt and reports how it ended; tokens.py counts what a task holds.
protocol.py is what both say to each other, secure_channel.py keeps it from others, headers.py reads what APIs tell.
"""
