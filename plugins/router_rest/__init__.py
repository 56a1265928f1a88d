"""Post events to HTTP APIs: calls, their pace, and what became of them."""
