"""Programs that look like those that can hang, each with what makes a hang impossible."""
