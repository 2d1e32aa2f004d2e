"""Plain values in YAML: settings of recipes, of configurations and of flags."""

import re
from typing import Any

import yaml

OTHER_BASES = re.compile(r"[-+]?0[0-9_]+|[-+]?[0-9][0-9_]*(:[0-9.]+)+")
"""Numbers to the base 8 or 60 in YAML 1.1, which YAML 1.2 and people read otherwise."""


class YamlLoader(yaml.SafeLoader):
    """Plain values only; `1e-3` is a number, as in YAML 1.2.

    Refused are a key that stands twice, and `010` and `1:30`: 8 and 90 in YAML 1.1.
    """

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

    def construct_number(self, node: Any) -> int | float:
        """A number that has one meaning."""
        if OTHER_BASES.fullmatch(node.value):
            problem = f"{node.value} is no decimal number; write one, or quote a text"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        if node.tag.endswith(":int"):
            return self.construct_yaml_int(node)
        return self.construct_yaml_float(node)


class YamlDumper(yaml.SafeDumper):
    """Plain values only; quotes a text that `YamlLoader` would read as a number."""


for door in (YamlLoader, YamlDumper):
    door.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
        list("-+0123456789"),
    )
for kind in ("int", "float"):
    YamlLoader.add_constructor(f"tag:yaml.org,2002:{kind}", YamlLoader.construct_number)
