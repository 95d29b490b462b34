// Package populator shows a populator: a volume that is filled from a tar archive, which is a file or has an HTTP address.
package populator

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/volume"
)

// Archive is the location and the digest of a tar archive.
type Archive struct {
	// Location is an absolute path or an http:// address.
	Location string
	// Size is the archive's size in bytes. The populator reads no more than that, and writes no more than that.
	Size int64
	// SHA256 is its digest in lower-case hexadecimal digits.
	SHA256 string
}

// Archives is a populator for claims whose data source names one of the archives that Find knows.
type Archives struct {
	// Find returns the archive of that name in a namespace. It may be called from several goroutines at once.
	Find func(ctx context.Context, namespace, name string) (Archive, error)
}

var _ persistentvolume.Populator = Archives{}

// Populate implements [persistentvolume.Populator]. It returns "sha256:" and the digest of the archive.
func (a Archives) Populate(ctx context.Context, request persistentvolume.PopulateRequest) (digest string, err error) {
	name := request.Claim.Spec.DataSourceRef.Name
	archive, err := a.Find(ctx, request.Claim.Namespace, name)
	if err != nil {
		return "", fmt.Errorf("archive %q: %w", name, err)
	}
	in, err := open(ctx, archive.Location)
	if err != nil {
		return "", fmt.Errorf("archive %q: %w", name, err)
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	dir, err := os.OpenRoot(request.Dir)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	r := &reader{ctx: ctx, in: in, archive: archive, report: request.Report}
	sum := sha256.New()
	if err := extract(dir, io.TeeReader(r, sum), archive.Size); err != nil {
		return "", fmt.Errorf("archive %q: %w", name, err)
	}
	if r.read != archive.Size {
		return "", fmt.Errorf("archive %q has %d bytes, and %d were expected: %w", name, r.read, archive.Size, volume.ErrInvalid)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != archive.SHA256 {
		return "", fmt.Errorf("archive %q has the digest %s, and %q was expected: %w", name, got, archive.SHA256, volume.ErrInvalid)
	}
	return "sha256:" + archive.SHA256, nil
}

// open opens a file or an HTTP address.
func open(ctx context.Context, location string) (io.ReadCloser, error) {
	if filepath.IsAbs(location) {
		return os.Open(location) //nolint:gosec // The one who names the archives may read them.
	}
	address, err := url.Parse(location)
	if err != nil || address.Scheme != "http" {
		return nil, fmt.Errorf("%q is neither an absolute path nor an http address: %w", location, volume.ErrInvalid)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, location, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("GET %q: %s: %w", location, response.Status, volume.ErrTransient), response.Body.Close())
	}
	return response.Body, nil
}

// reader reads at most the size of the archive, ends with ctx and reports the progress.
type reader struct {
	ctx     context.Context //nolint:containedctx // An io.Reader gets none; the reader lives as long as one call of Populate.
	in      io.Reader
	archive Archive
	report  func(persistentvolume.PopulateProgress)
	read    int64
}

// Read implements [io.Reader].
func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.in.Read(p)
	r.read += int64(n)
	if r.read > r.archive.Size {
		return 0, fmt.Errorf("it is larger than the %d bytes that were expected: %w", r.archive.Size, volume.ErrInvalid)
	}
	r.report(persistentvolume.PopulateProgress{Done: r.read, Total: r.archive.Size})
	return n, err
}

// extract writes an archive into dir, at most limit bytes, and reads it to its end. [os.Root] keeps every name and link
// inside dir.
func extract(dir *os.Root, archive io.Reader, limit int64) error {
	in := tar.NewReader(archive)
	var links []string
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			if _, err := io.Copy(io.Discard, archive); err != nil {
				return err
			}
			return checkLinks(dir, links)
		}
		if err != nil {
			return err
		}
		if header.Size < 0 || header.Size > limit {
			return fmt.Errorf("entry %q brings the content to more than the size of the archive: %w", header.Name, volume.ErrInvalid)
		}
		limit -= header.Size
		if err := write(dir, header, in); err != nil {
			return fmt.Errorf("entry %q: %w", header.Name, err)
		}
		if header.Typeflag == tar.TypeSymlink {
			links = append(links, path.Clean(header.Name))
		}
	}
}

// checkLinks refuses symbolic links that lead out of dir through other links. It allows a link to a missing file.
func checkLinks(dir *os.Root, links []string) error {
	for _, link := range links {
		if _, err := dir.Stat(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("entry %q: the link leads out of the volume or to itself: %w: %w", link, volume.ErrInvalid, err)
		}
	}
	return nil
}

// write writes one entry. It refuses entries other than files, directories and links inside the volume.
func write(dir *os.Root, header *tar.Header, content io.Reader) error {
	name := path.Clean(header.Name)
	if !filepath.IsLocal(name) {
		return fmt.Errorf("it lies outside of the volume: %w", volume.ErrInvalid)
	}
	mode := header.FileInfo().Mode().Perm()
	if err := dir.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeDir:
		if err := dir.MkdirAll(name, 0o755); err != nil {
			return err
		}
		return dir.Chmod(name, mode)
	case tar.TypeReg:
		return writeFile(dir, name, mode, content)
	case tar.TypeSymlink:
		if path.IsAbs(header.Linkname) || !filepath.IsLocal(path.Join(path.Dir(name), header.Linkname)) {
			return fmt.Errorf("the link leads out of the volume, to %q: %w", header.Linkname, volume.ErrInvalid)
		}
		return dir.Symlink(header.Linkname, name)
	case tar.TypeLink:
		if !filepath.IsLocal(header.Linkname) {
			return fmt.Errorf("the link leads out of the volume, to %q: %w", header.Linkname, volume.ErrInvalid)
		}
		return dir.Link(path.Clean(header.Linkname), name)
	}
	return fmt.Errorf("its type %s is no file, directory or link: %w", strings.TrimSpace(fmt.Sprintf("%q", header.Typeflag)), volume.ErrInvalid)
}

// writeFile writes a new file.
func writeFile(dir *os.Root, name string, mode os.FileMode, content io.Reader) (err error) {
	file, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := io.Copy(file, content); err != nil {
		return err
	}
	return file.Chmod(mode)
}
