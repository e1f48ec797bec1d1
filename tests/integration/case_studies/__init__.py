"""The case studies on real Ray: the commands of each page show what the page says."""
