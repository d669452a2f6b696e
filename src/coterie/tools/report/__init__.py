"""Looking at runs: records read from run directories, figures, rankings, and one page of HTML."""
