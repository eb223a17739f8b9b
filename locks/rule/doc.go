// Package rule declares the locks of a function beside it: which names it locks, made from its
// arguments, and what a call does when they are busy.
//
// [New] checks a rule when the program starts, against the type of the arguments. [Do] runs one
// call under the rule. [Wrap] makes a function whose every call does so. [ParseKey] describes the
// names, such as "bill:{ids[*]}", which names one lock per element of a list.
//
// A rule adds nothing to what package locks promises. It is a request of [locks.Client.Acquire],
// assembled from arguments.
package rule
