"""Files, free space and time as the storage engine sees them: the only part that touches an operating system."""
