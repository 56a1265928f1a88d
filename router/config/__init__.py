"""The configuration: YAML in, frozen models out, or every problem at once with file, line and column.

`loader` is the door: it reads a file (`yaml_tree`), replaces variables, validates it against the `models` and the parts
of the plugins, and tells what is wrong (`problems`). `json_schema` describes all of it to editors.
"""
