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

// browserName is the name of the program in Debian.
const browserName = "chromium-headless-shell"

// patience is how long a browser may take for all that a test does.
const patience = time.Minute

// openBrowser starts a browser that ends with the test, and returns the context of its tab.
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
	// Wait for the end of the browser: it removes its files before the test's directory is removed.
	t.Cleanup(func() { require.NoError(t, chromedp.Cancel(ctx)) })
	do(t, ctx)
	return ctx
}

// do runs actions in the browser.
func do(t *testing.T, ctx context.Context, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	require.NoError(t, chromedp.Do(ctx, actions...))
}

// evaluate returns the value of an expression in the page.
func evaluate[T any](t *testing.T, ctx context.Context, expression string) T {
	t.Helper()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	require.NoError(t, err, expression)
	return value
}

// text returns the visible text of the page.
func text(t *testing.T, ctx context.Context) string {
	t.Helper()
	return evaluate[string](t, ctx, "document.body.innerText")
}

// awaitText waits until the page shows a text.
func awaitText(t *testing.T, ctx context.Context, want string) {
	t.Helper()
	awaitTrue(t, ctx, "document.body.innerText.includes("+quote(want)+")")
}

// awaitTrue waits until an expression of the page is true.
func awaitTrue(t *testing.T, ctx context.Context, expression string) {
	t.Helper()
	require.Eventually(t, func() bool { return evaluate[bool](t, ctx, expression) }, patience, time.Millisecond, expression)
}

// draw writes a screenshot of the page into the directory SCREENSHOTS, if that is set.
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
