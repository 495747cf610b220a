"""Common English words, to make texts of that mean nothing."""

_TEXT = """
the of and to in a is that for it as was with be by on not he his but at are this have from or had an they
which one you were all her she there would their we him been has when who will no more if out so up said what its about
than into them can only other time new some could these two may first then do any like my now over such our man me even
most made after also well many must before back through years where much your way down should because long each just
state people too mr how little good world make very year still see own work men day get here old life both between being
under three never know same last another while us might great go come since against right came take used himself house
few use place during high without again home around small however found mrs part school thought went say general once
river engine winter music paper letter doctor garden market science window history language mountain computer
"""

WORDS = tuple(_TEXT.split())
