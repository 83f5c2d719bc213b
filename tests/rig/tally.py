"""Sums up test reports (JUnit XML of meson and pytest): `python -m rig.tally FILE…` prints passed, failed, skipped."""

import sys
import xml.etree.ElementTree as ElementTree


def count(path):
    passed = failed = skipped = 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


if __name__ == "__main__":
    print(*(sum(column) for column in zip((0, 0, 0), *map(count, sys.argv[1:]))))
