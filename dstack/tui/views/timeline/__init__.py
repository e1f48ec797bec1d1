"""The view of the history of tasks as a Gantt chart."""
