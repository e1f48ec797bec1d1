"""What findings are about, as typed data: drafts, ranks of groups, shared calls and failures."""
