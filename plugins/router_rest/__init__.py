"""Post events to HTTP APIs: bodies, calls, one limit for all tasks, receipts."""
