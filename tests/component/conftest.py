"""Fixtures for interleavings that are forced step by step."""

import pytest
from rig.hand import Gate, Hand
from rig.statements import mutant


@pytest.fixture
def hands(db):
    """Makes workers driven by hand."""
    made = []

    def new():
        made.append(Hand(db))
        return made[-1]

    yield new
    for hand in made:
        hand.close()


@pytest.fixture
def without_rule(root, request):
    """Makes a program without some rule of its SQL: without_rule((old, new), …)."""
    count = 0

    def make(*changes):
        nonlocal count
        count += 1
        return mutant(root / f"mutant-{request.node.name}-{count}", *changes)

    return make


@pytest.fixture
def gated(db):
    """Makes the program itself wait at a gate, with its snapshot taken and no lock got: gated(table, pattern) lets statements
    like `pattern` wait. The table is real_<table> from then on, and a view that has the gate in it stands in its place."""
    def gated(table, pattern):
        gate = Gate(db)
        db.execute("CREATE FUNCTION rig_gate_of(pattern text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS "
                   "$$ BEGIN IF current_query() LIKE pattern THEN PERFORM rig_gate(); END IF; RETURN true; END $$")
        db.execute(f"ALTER TABLE {table} RENAME TO real_{table}")
        db.execute(f"CREATE VIEW {table} AS SELECT * FROM real_{table} WHERE rig_gate_of('{pattern}')")
        return gate

    return gated
