"""No module of ours imports itself in a circle, imports for types only included."""

from graphlib import CycleError, TopologicalSorter

import grimp

PACKAGES = (
    "seglog_protocol",
    "seglog_broker",
    "seglog",
    "seglog_console",
    "seglog_spark",
    "pyspark_seglog",
    "benchmarks",
    "tests",
)


def test_there_is_no_cycle_among_our_modules() -> None:
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False)
    imports = {
        module: {
            imported
            for imported in graph.find_modules_directly_imported_by(module)
            # A package that names what its modules offer, and a module that imports its own package's name.
            if not module.startswith(f"{imported}.")
        }
        for module in graph.modules
    }
    assert len(imports) > 400
    cycle = None
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        cycle = error.args[1]
    assert cycle is None, " -> ".join(reversed(cycle or []))
