"""Plans of one training iteration: its time–energy frontier, and which setting every operation runs at."""
