package nfs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/volumekit/volumekit/mount"
	"github.com/volumekit/volumekit/volume"
)

// fsType is the filesystem type of a mount. The mount table shows version 4 as "nfs4".
const fsType = "nfs"

// versions are tried in this order if no option names a version.
var versions = []string{"4.2", "4.1", "4.0", "3"}

// mount mounts an export at dir, by the helper if that is needed, else by the kernel alone.
func (p *Plugin) mount(ctx context.Context, e export, options []string, dir string) error {
	request := mount.Request{Source: e.device(), Target: dir, FSType: fsType, UserOptions: options}
	if e.readOnly {
		request.Options = []string{"ro"}
	}
	if p.helped {
		return p.options.Helper.Mount(ctx, request)
	}
	try := versions
	asked, rest := splitVersion(options)
	if asked != "" {
		try = []string{asked}
	}
	addresses, err := p.addresses(ctx, e.server)
	if err != nil {
		return err
	}
	return p.mountByKernel(ctx, request, rest, try, addresses)
}

// mountByKernel tries the versions until the server supports one. Version 3 with locks needs the helper.
func (p *Plugin) mountByKernel(ctx context.Context, request mount.Request, rest, try []string, addresses []netip.Addr) error {
	var err error
	for _, version := range try {
		if version == "3" && !locksStay(rest) {
			request.UserOptions = append(slices.Clone(rest), "vers=3")
			return p.options.Helper.Mount(ctx, request)
		}
		err = p.mountFrom(ctx, request, rest, version, addresses)
		if !errors.Is(err, syscall.EPROTONOSUPPORT) {
			return err
		}
	}
	return fmt.Errorf("the server speaks none of the versions %s: %w", strings.Join(try, ", "), err)
}

// mountFrom tries one version at each address of the server until one answers.
func (p *Plugin) mountFrom(ctx context.Context, request mount.Request, rest []string, version string, addresses []netip.Addr) error {
	var errs []error
	for _, address := range addresses {
		request.UserOptions = kernelOptions(rest, version, address)
		err := p.options.Mounter.Mount(ctx, request)
		if err == nil || !isUnreachable(err) || errors.Is(err, volume.ErrUncertain) {
			return err
		}
		errs = append(errs, fmt.Errorf("at %s: %w", address, err))
	}
	if more := len(errs) - maxErrors; more > 0 {
		errs = append(errs[:maxErrors], fmt.Errorf("and at %d more addresses", more))
	}
	return errors.Join(errs...)
}

// maxErrors is the largest number of addresses in an error.
const maxErrors = 4

// isUnreachable reports whether the address did not answer.
func isUnreachable(err error) bool {
	for _, errno := range []error{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ETIMEDOUT, syscall.EHOSTDOWN} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// addresses returns the addresses of a server, in the order in which they are tried.
func (p *Plugin) addresses(ctx context.Context, server string) ([]netip.Addr, error) {
	if address, err := netip.ParseAddr(server); err == nil {
		return []netip.Addr{address}, nil
	}
	found, err := p.options.Resolver.LookupNetIP(ctx, "ip", server)
	if err != nil {
		return nil, volume.Transient(fmt.Errorf("the address of server %q is not known: %w", server, err))
	}
	if len(found) == 0 {
		return nil, volume.Transient(fmt.Errorf("server %q has no address", server))
	}
	addresses := make([]netip.Addr, 0, len(found))
	for _, address := range found {
		addresses = append(addresses, address.Unmap())
	}
	return addresses, nil
}

// kernelOptions returns the options with which the kernel mounts one version from one address. An option of the user
// replaces the plugin's option with the same key.
func kernelOptions(user []string, version string, address netip.Addr) []string {
	network := "tcp"
	if address.Is6() {
		network = "tcp6"
	}
	options := []string{"vers=" + version, "addr=" + address.String(), "proto=" + network}
	if version == "3" {
		options = append(options, "mountaddr="+address.String(), "mountproto="+network, "mountvers=3")
	} else if own := ownAddress(address); own != "" {
		options = append(options, "clientaddr="+own)
	}
	options = slices.DeleteFunc(options, func(option string) bool { return hasKey(user, keyOf(option)) })
	return append(options, user...)
}

// ownAddress returns the address of this host from which it reaches a server, or "". It sends nothing.
func ownAddress(server netip.Addr) string {
	connection, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(server, 2049)))
	if err != nil {
		return ""
	}
	defer func() { _ = connection.Close() }() // nothing was written to it
	own, err := netip.ParseAddrPort(connection.LocalAddr().String())
	if err != nil {
		return ""
	}
	return own.Addr().Unmap().String()
}

func keyOf(option string) string {
	key, _, _ := strings.Cut(option, "=")
	return key
}

func hasKey(options []string, key string) bool {
	return slices.ContainsFunc(options, func(option string) bool { return keyOf(option) == key })
}

// splitVersion removes the version from options and returns it, in every notation of nfs(5). It returns an empty version if
// options name none.
func splitVersion(options []string) (version string, rest []string) {
	minor := ""
	for _, option := range options {
		key, value, _ := strings.Cut(option, "=")
		switch {
		case key == "vers" || key == "nfsvers":
			version = value
		case key == "minorversion":
			minor = value
		case len(key) > 1 && key[0] == 'v' && strings.Trim(key[1:], "0123456789.") == "" && value == "":
			version = key[1:]
		default:
			rest = append(rest, option)
		}
	}
	if minor != "" && (version == "" || version == "4") {
		version = "4." + minor
	}
	return version, rest
}

// locksStay reports whether the options keep the locks of version 3 on this node. Then no lock daemon is needed.
func locksStay(options []string) bool {
	return slices.Contains(options, "nolock") || slices.Contains(options, "local_lock=all")
}
