package record

// disk is what a [Dir] does to its directory, one system call in each method, in the order in which it must be done: a
// test cuts the power between any two.
type disk interface {
	// create opens a file that is new or emptied.
	create(name string) (file, error)
	// rename puts a file in the place of another, in one step.
	rename(from, to string) error
	// unlink removes a file.
	unlink(name string) error
	// sync makes durable which names there are.
	sync() error
}

// file is a file that is being written.
type file interface {
	// Write writes all of content.
	Write(content []byte) (int, error)
	// Sync makes durable what was written.
	Sync() error
	// Close ends it.
	Close() error
}

// write puts content into a new file, and makes it durable with [Options].Sync.
func (d *Dir) write(name string, content []byte) error {
	f, err := d.disk.create(name)
	if err != nil {
		return err
	}
	if _, err = f.Write(content); err == nil && d.durable {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// replace puts content in the place of the file of that name, by way of temp.
func (d *Dir) replace(temp, name string, content []byte) error {
	if err := d.write(temp, content); err != nil {
		return err
	}
	return d.disk.rename(temp, name)
}

// sync makes durable, with [Options].Sync, which names there are.
func (d *Dir) sync() error {
	if !d.durable {
		return nil
	}
	return d.disk.sync()
}
