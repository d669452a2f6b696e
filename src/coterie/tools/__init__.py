"""Everything a run does not need: command line, report, dashboard, experiments, trackers."""
