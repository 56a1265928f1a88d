"""Files of a lake, wherever they are: folders, object stores, and the places of tables."""
