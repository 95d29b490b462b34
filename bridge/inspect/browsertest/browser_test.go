package browsertest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// browserName is the program, as Debian has it.
const browserName = "chromium-headless-shell"

// patience is how long a browser may take for all that a test does.
const patience = time.Minute

// openBrowser starts a browser that ends with the test, and returns what its tab is asked through.
func openBrowser(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath(browserName)
	if err != nil {
		t.Skip("missing: " + browserName)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(patience))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	// The browser is asked to end, and waited for: its files are gone before the test's directory is removed.
	t.Cleanup(func() { require.NoError(t, chromedp.Cancel(ctx)) })
	do(t, ctx)
	return ctx
}

// do has the browser do something.
func do(t *testing.T, ctx context.Context, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	require.NoError(t, chromedp.Do(ctx, actions...))
}

// evaluate returns what an expression of the page is.
func evaluate[T any](t *testing.T, ctx context.Context, expression string) T {
	t.Helper()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	require.NoError(t, err, expression)
	return value
}

// text returns what a reader sees of the page.
func text(t *testing.T, ctx context.Context) string {
	t.Helper()
	return evaluate[string](t, ctx, "document.body.innerText")
}

// awaitText waits until a reader sees something.
func awaitText(t *testing.T, ctx context.Context, want string) {
	t.Helper()
	awaitTrue(t, ctx, "document.body.innerText.includes("+quote(want)+")")
}

// awaitTrue waits until an expression of the page is true.
func awaitTrue(t *testing.T, ctx context.Context, expression string) {
	t.Helper()
	require.Eventually(t, func() bool { return evaluate[bool](t, ctx, expression) }, patience, time.Millisecond, expression)
}

// draw draws the page into the directory SCREENSHOTS, where that is set.
func draw(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	do(t, ctx, chromedp.EmulateViewport(1000, 700))
	image, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), image, 0o644))
}
