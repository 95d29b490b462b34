// Package browsertest tests the pages of package inspect in a real browser: what an operator reads, with and without JavaScript, with
// the keyboard alone, on a narrow screen and in the dark. It is a module of its own, because of the driver of the browser.
//
// It needs chromium-headless-shell, a package of Debian. With SCREENSHOTS set to a directory, the pages are drawn there, for the
// documentation.
package browsertest
