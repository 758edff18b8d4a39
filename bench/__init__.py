"""Speed, as ratios between things measured in one run."""
