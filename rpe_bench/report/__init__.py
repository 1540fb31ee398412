"""From run directories to conclusions: load, statistics, figures, tables, and the report that puts them together.

Everything reads run directories and nothing else. Each step is a function of DataFrames that a notebook can call alone;
nothing here imports torch or touches matplotlib's global state.
"""

from rpe_bench.report.build import Report, write_report
from rpe_bench.report.load import ReportError, Results, load_results

__all__ = ["Report", "ReportError", "Results", "load_results", "write_report"]
