#!/usr/bin/env python3
"""Turns sql/NNN_name.{up,down}.sql into a C table: version, name, both texts, checksum of the way up."""
import hashlib
import pathlib
import sys


def c_string(text):
    return "\n".join('    "%s\\n"' % line.replace("\\", "\\\\").replace('"', '\\"') for line in text.splitlines())


out, ups = sys.argv[1], sorted(p for p in sys.argv[2:] if p.endswith(".up.sql"))
rows = []
for number, path in enumerate(ups, start=1):
    version, name = pathlib.Path(path).name[: -len(".up.sql")].split("_", 1)
    if int(version) != number:
        sys.exit(f"{path}: expected number {number:03d}: migrations have no gaps")
    up = pathlib.Path(path).read_text()
    down = pathlib.Path(path.replace(".up.sql", ".down.sql")).read_text()
    checksum = hashlib.sha256(up.encode()).hexdigest()[:16]
    rows.append(f'    {{{number}, "{name}", "{checksum}",\n{c_string(up)},\n{c_string(down)}}},')
pathlib.Path(out).write_text(
    '#include "migration.h"\n\nconst struct migration migrations[] = {\n' + "\n".join(rows)
    + f"\n}};\nconst int n_migrations = {len(rows)};\n"
)
