module cachelane/lend

go 1.19
