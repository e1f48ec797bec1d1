"""Graph algorithms: reduction, components, cycles and open chains."""
