package mount

// changer makes mounts and changes them. What it has to know of those that are there its reader tells.
type changer struct{ reader *reader }
