// Command summary makes tables of benchmark output.
//
//	summary FILE...                    for each file, every benchmark with its spread and its ratio to impl=k8s
//	summary -goals FILE...             one row for each goal, of all the files together
//	summary -goals -into PAGE FILE...  the same, put into the markdown page between its two markers
//
// A FILE holds what run.sh has collected: the output of one process for each round. Lines that begin with "# " tell where
// and when. Every figure is the median of the rounds. A ratio is taken within each round, where both sides were measured
// one soon after the other; of the ratios the median is given, and the least and the greatest in brackets.
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"strings"
)

func main() {
	asGoals := flag.Bool("goals", false, "print one row for each goal")
	page := flag.String("into", "", "put the table of goals into this `page`, between its markers")
	head := flag.String("head", "", "print the text of this `file` above the table of goals")
	flag.Parse()
	show := showDetails
	if *asGoals {
		show = func(files []string) error { return showGoals(files, *head, *page) }
	}
	err := show(flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
		os.Exit(1)
	}
}

func showDetails(files []string) error {
	for _, name := range files {
		r, order, err := read(name)
		if err != nil {
			return err
		}
		if _, err := os.Stdout.WriteString(details(name, r, order)); err != nil {
			return err
		}
	}
	return nil
}

func showGoals(files []string, head, page string) error {
	all := results{}
	for _, name := range files {
		r, _, err := read(name)
		if err != nil {
			return err
		}
		maps.Copy(all, r)
	}
	text, err := goalsText(all, head)
	if err != nil {
		return err
	}
	if page != "" {
		return replaceBetweenMarkers(page, text)
	}
	_, err = os.Stdout.WriteString(text)
	return err
}

func goalsText(all results, head string) (string, error) {
	var above []byte
	if head != "" {
		var err error
		if above, err = os.ReadFile(head); err != nil {
			return "", err
		}
	}
	return string(above) + table(all), nil
}

// The lines of a page between which a table is put.
const (
	beginMarker = "<!-- begin: written by bench/run.sh -w -->\n"
	endMarker   = "<!-- end -->\n"
)

func replaceBetweenMarkers(page, text string) error {
	content, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(content), beginMarker)
	_, after, ended := strings.Cut(rest, endMarker)
	if !ok || !ended {
		return fmt.Errorf("%s has no line %q with a line %q below it", page, strings.TrimSpace(beginMarker), strings.TrimSpace(endMarker))
	}
	return os.WriteFile(page, []byte(before+beginMarker+text+endMarker+after), 0o644)
}
