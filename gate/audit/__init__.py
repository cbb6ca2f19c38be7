"""What was found in a repository or a package becomes the answers of an audit; pure."""
