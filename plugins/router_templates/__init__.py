"""Split texts with fields in braces."""
