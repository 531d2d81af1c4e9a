"""The page of Checkmate's figures and tables: the results of the experiments beside this file, with their pictures.

python -m experiments.checkmate.page
"""

from importlib import import_module

from experiments.running import CHECKMATE, RESULTS_FOLDER, read_points, write_text

PAGE = RESULTS_FOLDER / "checkmate.md"
# Title, module, pictures.
SECTIONS = (
    ("Figures 1 and 7: memory over time, and schedules of VGG19 in 16 GB", "schedules", ("figure1", "figure7")),
    ("Figure 3: memory by category", "memory_categories", ("figure3",)),
    ("Figure 5 and Table 2: overhead by budget, and approximation ratios", "budget_curves", ("figure5",)),
    ("Figure 5 with costs measured on this machine", "profiled_costs", ("figure5_profiled",)),
    ("Figure 5 with the costs of an H100", "h100_costs", ("figure5_h100",)),
    ("Figure 6: the largest batch", "max_batch", ("figure6",)),
    ("Section 6.4: the program with the batch as a variable", "batch_program", ()),
    ("Section 6.4: the largest images", "max_resolution", ()),
    ("Figure 8 and appendix D: rounding", "rounding", ("figure8",)),
    ("Appendix A and section 4.6: the integrality gap", "integrality", ("integrality",)),
    ("Section 5.1: methods for the linear relaxation", "relaxation_methods", ()),
    ("Section 5.1: rounding R and S together", "naive_rounding", ()),
)
_HEAD = """# Checkmate: figures and tables

Written by `python -m experiments.checkmate.page` from `checkmate.jsonl`. Each section names the command that measures
it.
"""


def page() -> str:
    """The tables of all experiments in markdown."""
    return "\n".join([_HEAD, *(_section(*section) for section in SECTIONS)])


def _section(title: str, name: str, pictures: tuple[str, ...]) -> str:
    module = import_module(f"experiments.checkmate.{name}")
    shown = "".join(f"\n![{title}](checkmate/{picture}.png)\n" for picture in pictures)
    table = module.table(read_points(CHECKMATE, name))
    return f"## {title}\n\n`python -m experiments.checkmate.{name}`\n\n```text\n{table}```\n{shown}"


def write_page() -> None:
    write_text(PAGE, page())


if __name__ == "__main__":
    write_page()
