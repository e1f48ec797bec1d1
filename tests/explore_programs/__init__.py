"""Programs that end by default and can hang in another order or with fewer resources; those in healthy/ never hang."""
