"""Watch a rank for an audit (`src.audit`), and change it where a cause is tested."""
