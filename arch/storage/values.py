"""Plain values in YAML: settings of recipes, of configurations and of flags."""

import re
from typing import Any

import yaml


class YamlLoader(yaml.SafeLoader):
    """Plain values only; `1e-3` is a number, as in YAML 1.2; a key that stands twice is refused."""

    def flatten_mapping(self, node: Any) -> None:
        """Checks the keys of a mapping before those that it merges in are among them."""
        keys = [] if hasattr(node, "checked") else [key for key, _ in node.value]
        node.checked, seen = True, set()
        for key in keys:
            text = isinstance(key, yaml.ScalarNode) and key.tag.endswith((":str", ":merge"))
            if not text or key.value in seen:
                problem = f"{key.value} stands twice" if text else "a key that is no text"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        super().flatten_mapping(node)


YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
