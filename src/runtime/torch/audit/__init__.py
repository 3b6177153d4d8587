"""What a rank does for an audit (`src.audit`): it is watched, and changed where a cause is tested."""
