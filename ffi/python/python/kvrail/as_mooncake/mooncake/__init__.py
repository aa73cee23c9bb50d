"""kvrail in the place of Mooncake's package: only its store."""
