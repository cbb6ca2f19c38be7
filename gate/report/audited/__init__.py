"""The answers of an audit for a reader: text, Markdown and the form of a checklist."""
