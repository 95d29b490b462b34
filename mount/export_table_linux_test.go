package mount

// HasMountEvents reports whether the kernel tells which mounts come and go.
func HasMountEvents() bool {
	fd, err := openMountEvents()
	if err == nil {
		closeFD(fd)
	}
	return err == nil
}
